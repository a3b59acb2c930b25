-- ARGV[2]: {run, key or '', whether there is a key, the mail without its time}. Gives accepted, duplicate, no_run or
-- {'damaged', text}.

local run, key, keyed, mail = unpack(cmsgpack.unpack(ARGV[2]))
local s, problem = load(run)
problem = problem or (s and check_mail(run, s))
if problem then return {'damaged', problem} end
if not s then return 'no_run' end
local shared = check_shared()
if shared then return {'store', shared} end
if keyed and redis.call('SISMEMBER', of('used', run), key) == 1 then return 'duplicate' end

local id = string.format('%.0f', tonumber(s.last_mail) + 1)
redis.call('HSET', of('mail', run), id, stamp .. ' ' .. mail)
local before = places(run, s)
s.mails = string.format('%.0f', tonumber(s.mails) + 1)
redis.call('HSET', of('head', run), 'mails', s.mails, 'last_mail', id, 'rev', next_rev())
if keyed then
  redis.call('SADD', of('used', run), key)
  redis.call('HINCRBY', of('head', run), 'used', 1)
end
enter(before, places(run, s))
publish(true)
return 'accepted'
