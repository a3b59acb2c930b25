-- ARGV[2]: {owner, limits, its own runs that do not count for them, the runs as {id, rev}}, ARGV[3]: the fields of a head.
-- Claims those that are as the caller saw them and for which there is room. Gives for each {'', row, log from its base
-- on, mail}, {'changed'} or {'damaged', text}.

local owner, limits, spared, wanted = unpack(cmsgpack.unpack(ARGV[2]))
local fields = cmsgpack.unpack(ARGV[3])
local replies, states, but = {}, {}, {}

for i, one in ipairs(wanted) do
  local s, problem = load(one[1])
  problem = problem or (s and not (whole(s.fence) and whole(s.attempt)) and 'its fence cannot be raised')
  if problem then
    replies[i] = {'damaged', problem}
  elseif not s or s.rev ~= one[2] or (s.owner and s.owner ~= owner and alive(s.owner)) then
    replies[i] = {'changed'}
  else
    local shared = check_shared() or check_places(one[1], s)
    if shared then return {'store', shared} end
    states[i], but[one[1]] = s, true
  end
end

for _, run in ipairs(spared) do but[run] = true end
count_under_way(limits, owner, but)
for i = 1, #wanted do
  if states[i] and not take_room(states[i].light) then states[i], replies[i] = nil, {'changed'} end
end

-- The log of a run that somebody has is not dropped: what is left of it is all that there is to go on with.
local function keep_log(run, s)
  if not s.last then return end
  if s.length == 0 then
    redis.call('RPUSH', of('log', run), s.last)
    redis.call('HSET', of('head', run), 'first', string.format('%.0f', s.seq))
    s.first = s.seq
  end
  redis.call('PERSIST', of('log', run))
  redis.call('HDEL', of('head', run), 'last')
end

local claimed = false
for i, s in pairs(states) do
  local run = wanted[i][1]
  local head, before = of('head', run), places(run, s)
  s.owner = owner
  redis.call('HSET', head, 'owner', owner, 'rev', next_rev())
  redis.call('HINCRBY', head, 'fence', 1)
  redis.call('HINCRBY', head, 'attempt', 1)
  keep_log(run, s)
  leave(before, places(run, s))
  redis.call('HSET', P .. 'owned', run, holding(s))
  local log = redis.call('LRANGE', of('log', run), math.max(s.base - s.first, 0), -1)
  replies[i] = {'', row(run, fields), log, mail_of(run, s)}
  claimed = true
end
if claimed then publish(false) end
return replies
