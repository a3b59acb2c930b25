-- ARGV[2]: owner.

for _, name in ipairs({'leases', 'beats'}) do redis.call('ZCARD', P .. name) end
redis.call('HLEN', P .. 'owners')
redis.call('ZREM', P .. 'leases', ARGV[2])
redis.call('ZREM', P .. 'beats', ARGV[2])
redis.call('HDEL', P .. 'owners', ARGV[2])
publish(true)
return 1
