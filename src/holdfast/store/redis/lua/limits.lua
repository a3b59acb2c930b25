-- How many more runs of a flow, and of each key of it, may be under way. It is counted in the script that takes them,
-- where nobody can start any meanwhile: who only compared with what was seen before would never be done in a busy store.

local flows = {}

-- Whether there is room for one more run with this light part of a head, which takes it; `anyway` if it has it already.
local function take_room(light, anyway)
  local known, parts = pcall(cjson.decode, light)
  local flow = known and type(parts) == 'table' and flows[parts[1]]
  if not flow then return true end
  local key = type(parts[3]) == 'string' and parts[3]
  local keyed = key and flow.keys[key] or 0
  local is_full = (flow.most >= 0 and flow.all >= flow.most) or (key and flow.per_key >= 0 and keyed >= flow.per_key)
  if is_full and not anyway then return false end
  flow.all = flow.all + 1
  if key then flow.keys[key] = keyed + 1 end
  return true
end

-- Begin to count: limits are {flow, most, most of one key}, where -1 is any number. Of the claimer's own runs those in
-- `but` do not count.
local function count_under_way(limits, claimer, but)
  if #limits == 0 then return end
  for _, limit in ipairs(limits) do
    flows[limit[1]] = {most = limit[2], per_key = limit[3], all = 0, keys = {}}
  end
  local owned = redis.call('HGETALL', P .. 'owned')
  for i = 1, #owned, 2 do
    local owner, light = string.match(owned[i + 1], '^%+(%S*) (.*)$')
    if owner and alive(owner) and not (owner == claimer and but[owned[i]]) then take_room(light, true) end
  end
end
