-- Where a run stands in the indexes, and how it gets from one place to another.

-- The runs of one flow in one queue stand in one line. Either name may hold anything, hence the length.
local function line_of(s) return #s.queue .. ':' .. s.queue .. ':' .. s.flow end

-- Where a run of this state is to stand: index -> {member, score, line}. Where the score is 0, members sort by their
-- bytes; only those indexes that are part of a line name one.
local function places(run, s)
  local found = {
    [P .. 'runs'] = {s.place, '0'},
    [P .. 'in:' .. s.status] = {s.place, '0'},
  }
  if not s.owner and not ENDED[s.status] then
    -- What waits for a time stands apart, or all that sleeps would stand in the way of what is ready.
    local line = line_of(s)
    found[P .. (s.wake_at and 'later:' or 'turn:') .. s.status .. ':' .. line] = {s.turn, '0', line}
  end
  if s.wake_at then found[P .. 'due'] = {s.place, s.wake_at} end
  if s.expires_at then found[P .. 'expiring'] = {s.place, s.expires_at} end
  if s.parent then found[P .. 'children:' .. s.parent] = {s.place, '0'} end
  if s.mails ~= '0' then found[P .. 'mailed'] = {s.place, '0'} end
  return found
end

-- What `owned` says of a run: whether it has ended, who has it, and the light part of its head.
local function holding(s)
  return (ENDED[s.status] and '-' or '+') .. s.owner .. ' ' .. s.light
end

local SHARED = {owned = 'hash', meta = 'hash', lines = 'set', runs = 'zset', due = 'zset', expiring = 'zset',
  mailed = 'zset'}
local sound = {}
local function check(key, wanted)
  if sound[key] then return end
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= wanted then return key .. ' is a key of another type' end
  sound[key] = true
end

-- What of the shared keys cannot be written; nil when all can.
local function check_shared()
  for name, wanted in pairs(SHARED) do
    local problem = check(P .. name, wanted)
    if problem then return problem end
  end
  return check_counter()
end

-- The same for those in which a run of this state stands, or will.
local function check_places(run, s)
  for key in pairs(places(run, s)) do
    local problem = check(key, 'zset')
    if problem then return problem end
  end
end

-- A line in which nobody stands any more is forgotten: claims look at all that are known, and a fleet that makes a
-- queue for each of its customers would know more each day.
local function forget_if_empty(line)
  local parts = {}
  for _, status in ipairs(UNFINISHED) do
    parts[#parts + 1] = P .. 'turn:' .. status .. ':' .. line
    parts[#parts + 1] = P .. 'later:' .. status .. ':' .. line
  end
  if redis.call('EXISTS', unpack(parts)) == 0 then redis.call('SREM', P .. 'lines', line) end
end

local function leave(before, after)
  for key, at in pairs(before) do
    if not after[key] then
      redis.call('ZREM', key, at[1])
      if at[3] then forget_if_empty(at[3]) end
    end
  end
end

local function enter(before, after)
  for key, at in pairs(after) do
    if not before[key] or before[key][2] ~= at[2] then redis.call('ZADD', key, at[2], at[1]) end
    if at[3] and not before[key] then redis.call('SADD', P .. 'lines', at[3]) end
  end
end

-- The number that tells a run's state from every other that it ever had, also after its id was used again.
local rev
local function next_rev()
  rev = rev or string.format('%.0f', redis.call('HINCRBY', P .. 'meta', 'rev', 1))
  return rev
end
