-- ARGV[2]: {owner, what `taken` must be or '', the runs as {id, rev}}, ARGV[3]: the fields of a head.
-- Claims those that are as the caller saw them. Gives for each {'', row, log from its base on, mail},
-- {'changed'} or {'damaged', text}.

local owner, counted, wanted = unpack(cmsgpack.unpack(ARGV[2]))
local fields = cmsgpack.unpack(ARGV[3])
local replies, states = {}, {}

if counted ~= '' and (redis.call('HGET', P .. 'meta', 'taken') or '0') ~= counted then
  for i = 1, #wanted do replies[i] = {'changed'} end
  return replies
end

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
    states[i] = s
  end
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
if claimed then
  note_taken()
  publish(false)
end
return replies
