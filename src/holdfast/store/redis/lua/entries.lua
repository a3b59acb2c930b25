-- ARGV[2]: {run, after, upto or -1, limit or -1}. Gives {'', entries} or {'damaged', text}.

local run, after, upto, limit = unpack(cmsgpack.unpack(ARGV[2]))
local s, problem = load(run)
if problem then return {'damaged', problem} end
if not s or limit == 0 then return {'', {}} end
if s.length == 0 then  -- expired: what was kept apart is the whole log
  return {'', after < s.seq and (upto < 0 or s.seq <= upto) and {s.last} or {}}
end
local start = math.max(after + 1 - s.first, 0)
local stop = (upto < 0 and s.seq or math.min(upto, s.seq)) - s.first
if limit > 0 then stop = math.min(stop, start + limit - 1) end
if stop < start then return {'', {}} end
return {'', redis.call('LRANGE', of('log', run), start, stop)}
