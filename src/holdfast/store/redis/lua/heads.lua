-- ARGV[2]: ids, ARGV[3]: fields. Gives for each {'', row}, {'none'} or {'damaged', text}.

local fields, replies = cmsgpack.unpack(ARGV[3]), {}
for i, run in ipairs(cmsgpack.unpack(ARGV[2])) do
  local s, problem = load(run)
  if problem then
    replies[i] = {'damaged', problem}
  else
    replies[i] = s and {'', row(run, fields)} or {'none'}
  end
end
return replies
