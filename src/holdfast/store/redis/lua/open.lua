-- ARGV[2]: whether to make a store where there is none.
-- Gives the version found, 'none' when there is no store and none was made, or {'store', text}.

local kind = redis.call('TYPE', P .. 'meta').ok
if kind ~= 'none' and kind ~= 'hash' then return {'store', P .. 'meta is a key of another type'} end
local found = redis.call('HGET', P .. 'meta', 'version')
if found then
  if found ~= VERSION then return found end
else
  -- Owners may be there without any run: who has the store open goes on to beat when the server has lost everything.
  local rest = redis.call('EXISTS', P .. 'meta', P .. 'runs', P .. 'owned', P .. 'lines')
  if rest > 0 then return {'store', 'its version is missing, though runs are there'} end
  if ARGV[2] ~= 'yes' then return 'none' end
end

-- Every command that the scripts write with is tried on a key that nobody uses: a user who may not do one of them
-- is told now and not in the middle of a commit.
local try = P .. 'trial'
redis.call('DEL', try)
redis.call('HSET', try, 'a', '1')
redis.call('HSETNX', try, 'a', '1')
redis.call('HINCRBY', try, 'a', 1)
redis.call('HDEL', try, 'a')
redis.call('RPUSH', try, 'a', 'b')
redis.call('LSET', try, 0, 'c')
redis.call('LTRIM', try, 1, -1)
redis.call('LINDEX', try, -1)
redis.call('PEXPIREAT', try, now + 60000)
redis.call('PERSIST', try)
redis.call('DEL', try)
redis.call('SADD', try, 'a')
redis.call('SREM', try, 'a')
redis.call('ZADD', try, '0', 'a')
redis.call('ZREM', try, 'a')
redis.call('PUBLISH', P .. 'trial', '')
redis.call('HSET', P .. 'meta', 'version', VERSION)
return VERSION
