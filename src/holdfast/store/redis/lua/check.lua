-- ARGV[2]: ids, ARGV[3]: {indexes, from which place on, how many}. Gives {problems, whether some index has more}; a
-- problem is {run or '', what is wrong, index or '', member}.

local problems = {}
local function note(run, text, index, member)
  problems[#problems + 1] = {run, text, index or '', member or ''}
end

for _, run in ipairs(cmsgpack.unpack(ARGV[2])) do
  local s, problem = load(run)
  if problem then
    note(run, problem)
  elseif s then
    for key, at in pairs(places(run, s)) do
      local score = redis.pcall('ZSCORE', key, at[1])
      if type(score) ~= 'string' or tonumber(score) ~= tonumber(at[2]) then
        note(run, 'it is not in the index ' .. string.sub(key, #P + 1))
      end
      if at[3] and redis.pcall('SISMEMBER', P .. 'lines', at[3]) ~= 1 then note(run, 'its line is not known') end
    end
    local held = redis.pcall('HGET', P .. 'owned', run)
    if (held or nil) ~= (s.owner and holding(s)) then note(run, 'it is not in the index owned as it is') end
  end
end

local indexes, start, count = unpack(cmsgpack.unpack(ARGV[3]))
local more = 0
for _, index in ipairs(indexes) do
  local members = redis.pcall('ZRANGE', index, start, start + count - 1)
  if members.err then
    note('', index .. ' is a key of another type')
    members = {}
  end
  if #members == count then more = 1 end
  local kind = string.match(string.sub(index, #P + 1), '^%a+')
  local skip = (kind == 'turn' or kind == 'later') and 21 or 17
  for _, member in ipairs(members) do
    local run = string.sub(member, skip)
    local s, problem = load(run)
    local at = s and places(run, s)[index]
    if not problem and not (at and at[1] == member) then
      note(run, 'the index ' .. string.sub(index, #P + 1) .. ' names it wrongly', index, member)
    end
  end
end
return {problems, more}
