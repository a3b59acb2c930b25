-- ARGV[2]: {owner, what is known of it, lease in milliseconds, how long the dead are remembered}.

local owner, known, lease, remembered = unpack(cmsgpack.unpack(ARGV[2]))
for _, name in ipairs({'leases', 'beats'}) do redis.call('ZCARD', P .. name) end
for _, name in ipairs({'owners', 'owned'}) do redis.call('HLEN', P .. name) end
local gone = redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', now - remembered, 'LIMIT', 0, 100)

redis.call('HSET', P .. 'owners', owner, known)
redis.call('ZADD', P .. 'leases', now + lease, owner)
redis.call('ZADD', P .. 'beats', stamp, owner)

-- Owners that died long ago and own nothing leave no trace.
if #gone > 0 then
  local busy = {}
  for _, value in ipairs(redis.call('HVALS', P .. 'owned')) do
    busy[string.sub(value, 2, (string.find(value, ' ', 1, true) or 1) - 1)] = true
  end
  for _, one in ipairs(gone) do
    if one ~= owner and not busy[one] then
      redis.call('HDEL', P .. 'owners', one)
      redis.call('ZREM', P .. 'leases', one)
      redis.call('ZREM', P .. 'beats', one)
    end
  end
end
return 1
