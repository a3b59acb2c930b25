-- ARGV[2]: ids, ARGV[3]: {fields, what mail that counts begins with}. Gives for each {'', row}, {'none'} or {'damaged', text}.

local fields, beginnings = unpack(cmsgpack.unpack(ARGV[3]))
local replies = {}
for i, run in ipairs(cmsgpack.unpack(ARGV[2])) do
  local s, problem = load(run)
  if problem then
    replies[i] = {'damaged', problem}
  else
    replies[i] = s and {'', row(run, fields, beginnings)} or {'none'}
  end
end
return replies
