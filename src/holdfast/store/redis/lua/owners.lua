-- Gives {owner, what is known of it, when it beat, whether it lives} for each.

local found = {}
local known = redis.call('HGETALL', P .. 'owners')
for i = 1, #known, 2 do
  local beat = redis.call('ZSCORE', P .. 'beats', known[i])
  found[#found + 1] = {known[i], known[i + 1], beat or '0', alive(known[i]) and 1 or 0}
end
return found
