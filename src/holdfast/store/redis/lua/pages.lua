-- ARGV[2]: {indexes, is newest first, from, to, how many of each}, ARGV[3] as for heads, ARGV[4]: who claims, or ''.
-- Gives {owned, the rows of runs whose owner is dead or the claimer, for each index {how many, last member, rows}}.
-- All of it at one moment. Members are 16 or 20 hex digits that sort, and the id.

local indexes, newest, from, to, count = unpack(cmsgpack.unpack(ARGV[2]))
local fields, beginnings = unpack(cmsgpack.unpack(ARGV[3]))
local claimer = ARGV[4]

local function members(index)
  if newest then return redis.call('ZREVRANGEBYLEX', index, from, to, 'LIMIT', 0, count) end
  return redis.call('ZRANGEBYLEX', index, from, to, 'LIMIT', 0, count)
end

local pages = {}
for i, index in ipairs(indexes) do
  local found, rows = members(index), {}
  for _, member in ipairs(found) do
    rows[#rows + 1] = row(string.sub(member, newest and 17 or 21), fields, beginnings) or nil
  end
  pages[i] = {#found, found[#found] or '', rows}
end

local owned, free = {}, {}
if claimer ~= '' then
  owned = redis.call('HGETALL', P .. 'owned')
  for i = 1, #owned, 2 do
    local owner = string.sub(owned[i + 1], 2, (string.find(owned[i + 1], ' ', 1, true) or 1) - 1)
    if owner == claimer or not alive(owner) then
      free[#free + 1] = row(owned[i], fields, beginnings) or nil
      if not alive(owner) then owned[i + 1] = '' end
    end
  end
end
return {owned, free, pages}
