-- ARGV[2]: the batch, ARGV[3]: 'quiet' when nobody is to be called to what it gives up. Writes each commit wholly or
-- refuses it; gives {what became of it, text, mail} for each.
-- A commit: run, owner, fence, is new, flaw, first seq, entries, fields, cleared, taken, rebase {seq, entry, cursor, at},
-- whether it may move the run in the indexes, which a usual step does not, the last mail heard of or -1.

local batch = cmsgpack.unpack(ARGV[2])
local runs, ahead, damage = {}, {}, {}  -- as they are, as the commits looked at so far will leave them, what is wrong
local replies, afters = {}, {}
local taken = {}  -- by run and id, the mail that the commits looked at so far will take

-- The state after a commit, but for the mail that it takes.
local function changed(s, c)
  local after = {}
  for _, name in ipairs(STATE) do after[name] = s[name] end
  for i = 1, #c[8], 2 do after[c[8][i]] = c[8][i + 1] end
  for _, name in ipairs(c[9]) do after[name] = nil end
  after.seq, after.first, after.base = tonumber(after.seq), c[11][1] or tonumber(after.first), tonumber(after.base)
  return after
end

-- Whether mail waits that came after the last one that was heard of.
local function is_unheard(run, s, heard)
  if heard < 0 or tonumber(s.last_mail) <= heard then return false end
  for _, id in ipairs(redis.call('HKEYS', of('mail', run))) do
    if tonumber(id) > heard and not taken[run .. ' ' .. id] then return true end
  end
  return false
end

local function refusal(s, c)
  if c[4] and s then return 'exists' end
  if c[5] == 'stale' then return 'stale' end
  if not c[4] and (not s or s.owner ~= c[2] or s.fence ~= c[3]) then return 'stale' end
  local first, last = s and s.first or 1, s and s.seq or 0
  if c[5] == 'gap' or (#c[7] > 0 and c[6] ~= last + 1) then return 'gap' end
  local rebase = c[11][1]
  if rebase and (rebase < first or rebase > last + #c[7]) then return 'gap' end
  if s and is_unheard(c[1], s, c[13]) then return 'unheard' end
end

-- What becomes of a commit, in the state that those before it will leave. Everything that may be touched is looked at
-- here, before the first write.
local function look_at(c)
  local run = c[1]
  if ahead[run] == nil and not damage[run] then
    local s, problem = load(run)
    runs[run], ahead[run], damage[run] = s or false, s or false, problem
  end
  if damage[run] then return 'damaged', damage[run] end
  local s = ahead[run]
  local refused = refusal(s, c)
  if refused then return refused, '' end
  ahead[run] = changed(s or {}, c)
  for _, id in ipairs(c[10]) do taken[run .. ' ' .. id] = true end
  local shared = c[12] and (check_shared() or (s and check_places(run, s)) or check_places(run, ahead[run]))
  if shared then return 'store', shared end
  return '', ''
end

for i, c in ipairs(batch) do
  replies[i] = {look_at(c)}
  afters[i] = ahead[c[1]]
  if replies[i][1] == 'store' then return replies[i] end
end

-- The server may have lost everything since the store was opened: the first run makes it anew. One that has runs but no
-- version is not made whole by writing to it.
local function begin_store()
  if redis.call('EXISTS', P .. 'runs') == 0 then redis.call('HSETNX', P .. 'meta', 'version', VERSION) end
end

local function append(run, entries)
  for i = 1, #entries, CHUNK do
    redis.call('RPUSH', of('log', run), unpack(entries, i, math.min(i + CHUNK - 1, #entries)))
  end
end

local function rebased(run, s, first, rebase)
  local index = rebase[1] - first
  redis.call('LSET', of('log', run), index, rebase[2])
  if index > 0 then redis.call('LTRIM', of('log', run), index, -1) end
  redis.call('HSET', of('head', run), 'first', string.format('%.0f', s.first))
  if s.first == s.seq then redis.call('HSET', of('head', run), 'cursor', rebase[3], 'updated_at', rebase[4]) end
end

local function take(run, s, ids)
  local gone = 0
  for _, id in ipairs(ids) do gone = gone + redis.call('HDEL', of('mail', run), id) end
  if gone > 0 then
    s.mails = string.format('%.0f', tonumber(s.mails) - gone)
    redis.call('HSET', of('head', run), 'mails', s.mails)
  end
end

-- An ended run that nobody has loses its log when it expires; the last entry stays, so that it is known to have been.
local function let_fade(run, s)
  local due = s.expires_at and math.max(tonumber(s.expires_at) * 1000, 1)
  if not due or s.owner or not ENDED[s.status] or due > 1e15 then return end
  redis.call('HSET', of('head', run), 'last', redis.call('LINDEX', of('log', run), -1))
  redis.call('PEXPIREAT', of('log', run), string.format('%.0f', math.ceil(due)))
end

local touched, ready = false, false

local function write(c, was, s)
  local run, head = c[1], of('head', c[1])
  local before = was and places(run, was) or {}
  if was then s.mails = was.mails end  -- which those before it may have taken
  if c[4] then begin_store() end
  if c[12] then redis.call('HSET', head, 'rev', next_rev()) end
  if #c[8] > 0 then redis.call('HSET', head, unpack(c[8])) end
  if #c[9] > 0 then redis.call('HDEL', head, unpack(c[9])) end
  append(run, c[7])
  take(run, s, c[10])
  if c[11][1] then rebased(run, s, was and was.first or 1, c[11]) end
  if c[12] then
    local after = places(run, s)
    leave(before, after)
    enter(before, after)
    if s.owner then redis.call('HSET', P .. 'owned', run, holding(s)) else redis.call('HDEL', P .. 'owned', run) end
    ready = ready or not s.owner
    let_fade(run, s)
  end
  touched = true
end

for i, c in ipairs(batch) do
  if replies[i][1] == '' then
    local run = c[1]
    local empty = not c[4] and #c[7] + #c[8] + #c[9] + #c[10] == 0 and not c[11][1]
    if not empty then
      write(c, runs[run], afters[i])
      runs[run] = afters[i]
    end
    replies[i][3] = mail_of(run, runs[run])
  end
end
if touched then publish(ready and ARGV[3] ~= 'quiet') end
return replies
