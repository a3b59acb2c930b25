-- ARGV[2]: ids, ARGV[3]: an index and some of its members, or nothing. Gives {run, what is wrong} for each problem.

local problems = {}

for _, run in ipairs(cmsgpack.unpack(ARGV[2])) do
  local s, problem = load(run)
  if problem then
    problems[#problems + 1] = {run, problem}
  elseif s then
    for key, at in pairs(places(run, s)) do
      local score = redis.pcall('ZSCORE', key, at[1])
      if type(score) ~= 'string' or tonumber(score) ~= tonumber(at[2]) then
        problems[#problems + 1] = {run, 'it is not in the index ' .. string.sub(key, #P + 1)}
      end
    end
    local held = redis.pcall('HGET', P .. 'owned', run)
    if (held or nil) ~= (s.owner and holding(s)) then
      problems[#problems + 1] = {run, 'it is not in the index owned as it is'}
    end
  end
end

local index, members = unpack(cmsgpack.unpack(ARGV[3]))
local skip = index and string.find(index, P .. 'turn:', 1, true) == 1 and 21 or 17
for _, member in ipairs(members or {}) do
  local run = string.sub(member, skip)
  local s, problem = load(run)
  local at = s and places(run, s)[index]
  if not problem and not (at and at[1] == member) then
    problems[#problems + 1] = {run, 'the index ' .. string.sub(index, #P + 1) .. ' names it wrongly', member}
  end
end
return problems
