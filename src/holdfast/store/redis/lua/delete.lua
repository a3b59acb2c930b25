-- ARGV[2]: run. Gives 1 when it was removed, 0 when not, 2 when so little was left of it that some index may still
-- name it.

local run = ARGV[2]
local head = of('head', run)
local values = redis.pcall('HGET', head, 'owner')
if type(values) == 'string' and alive(values) then return 0 end
local s = load(run)
local found = redis.call('EXISTS', head, of('log', run), of('mail', run), of('used', run))
if found == 0 then return 0 end
local shared = check_shared() or (s and check_places(run, s))
if shared then return {'store', shared} end

redis.call('DEL', head, of('log', run), of('mail', run), of('used', run))
if s then leave(places(run, s), {}) end
redis.call('HDEL', P .. 'owned', run)
publish(false)
return s and 1 or 2
