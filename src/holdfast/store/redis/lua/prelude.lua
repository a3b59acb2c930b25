-- What every script begins with. ARGV[1] is the prefix of the store's keys.
--
-- A script that fails half-way is not rolled back. So each one first reads all that it will touch, with the types of
-- the keys, and writes only when nothing can fail any more: every value that it then writes was checked or made here.
-- What the server itself may refuse (memory, disk, a replica) it refuses at the first write or not at all.

local P = ARGV[1] .. ':'
local ENDED = {completed = true, failed = true, cancelled = true}
local UNFINISHED = {'pending', 'running', 'waiting', 'paused', 'interrupted'}
local STATE = {'status', 'owner', 'fence', 'attempt', 'seq', 'first', 'base', 'wake_at', 'expires_at', 'parent',
  'flow', 'queue', 'place', 'turn', 'light', 'mails', 'last_mail', 'used', 'last', 'rev'}
local CHUNK = 1000  -- values in one call: Lua has room for some thousands on its stack

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local stamp = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

local function of(kind, run) return P .. kind .. ':' .. run end

-- Whether the text is a whole number that a double holds exactly.
local function whole(text)
  return type(text) == 'string' and #text < 16 and string.find(text, '^%d+$') ~= nil
end

-- What is wrong with the counter of the store; nil when it can be raised.
local function check_counter()
  local value = redis.call('HGET', P .. 'meta', 'rev')
  if value and not whole(value) then return P .. 'meta does not say rev' end
end

local lives = {}
local function alive(owner)
  if not owner then return false end
  if lives[owner] == nil then
    local lease = redis.call('ZSCORE', P .. 'leases', owner)
    lives[owner] = lease and tonumber(lease) > now or false
  end
  return lives[owner]
end

-- Whether Redis was to drop the log of this run by now: it has ended, nobody has it, and its time has come.
local function lapsed(s)
  return s.last and ENDED[s.status] and not s.owner and s.expires_at and tonumber(s.expires_at) * 1000 <= now + 1
end

local function check_mail(run, s)
  local waiting = redis.pcall('HLEN', of('mail', run))
  local used = redis.pcall('SCARD', of('used', run))
  if type(waiting) == 'table' or type(used) == 'table' then return 'its inbox is a key of another type' end
  if waiting ~= tonumber(s.mails) or used ~= tonumber(s.used) then return 'mail is missing from its inbox' end
end

-- The run as far as its head can be read, or nil; and what is wrong with it. Only reads, and never fails.
local function load(run)
  local values = redis.pcall('HMGET', of('head', run), unpack(STATE))
  if values.err then return nil, 'its head is a key of another type' end
  local length = redis.pcall('LLEN', of('log', run))
  if type(length) == 'table' then return nil, 'its log is a key of another type' end
  local s = {length = length}
  for i, name in ipairs(STATE) do s[name] = values[i] or nil end
  if not s.status then
    local rest = redis.call('EXISTS', of('head', run), of('log', run), of('mail', run), of('used', run))
    return nil, rest > 0 and 'its head is missing' or nil
  end
  for _, name in ipairs({'fence', 'attempt', 'seq', 'first', 'base', 'mails', 'last_mail', 'used', 'rev'}) do
    if not whole(s[name]) then return nil, 'its head does not say ' .. name end
  end
  if not (s.place and s.turn and s.light and s.queue and s.flow) then return nil, 'its head does not say its place' end
  if (s.wake_at and not tonumber(s.wake_at)) or (s.expires_at and not tonumber(s.expires_at)) then
    return nil, 'its head does not say its times'
  end
  s.seq, s.first, s.base = tonumber(s.seq), tonumber(s.first), tonumber(s.base)
  if length ~= s.seq - s.first + 1 and not (length == 0 and lapsed(s)) then
    return s, 'entries of its log are missing'
  end
  return s, (s.mails ~= '0' or s.used ~= '0') and check_mail(run, s) or nil
end

local function mail_of(run, s)
  return s.mails ~= '0' and redis.call('HGETALL', of('mail', run)) or {}
end

-- Whether there is mail that begins, behind its time, in one of these ways; nil where the inbox cannot be read.
local function has_any(run, beginnings)
  local inbox = redis.pcall('HVALS', of('mail', run))
  if inbox.err then return nil end
  for _, mail in ipairs(inbox) do
    local at = string.find(mail, ' ', 1, true) or 0
    for _, beginning in ipairs(beginnings) do
      if string.sub(mail, at + 1, at + #beginning) == beginning then return true end
    end
  end
  return false
end

-- The head for the caller: whether a live owner has it, its id, and these fields; false when it is not there. Where
-- only mail of some kinds counts, the number of the mail, which is the last field but one, is 0 without such.
local function row(run, fields, beginnings)
  local values = redis.pcall('HMGET', of('head', run), unpack(fields))
  if values.err or not values[1] then return false end
  local mails = #fields - 1
  if beginnings and values[mails] ~= '0' and has_any(run, beginnings) == false then values[mails] = '0' end
  return {alive(values[2]) and 1 or 0, run, values}
end

local function publish(ready)
  redis.call('PUBLISH', P .. 'any', stamp)
  if ready then redis.call('PUBLISH', P .. 'ready', stamp) end
end
