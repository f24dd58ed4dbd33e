-- @include time, entries, healing
-- Put parked jobs of a resumed run back into `delayed`, due at once. A batch per call.
--
-- @key run = run:{run_id}, parked = run:{run_id}:parked, delayed
-- @arg prefix
-- @arg most  jobs
-- @answer moved, left  jobs put back and still parked; 0 and 0 if the run is not active: if it was
--         paused again, its jobs stay parked
if redis.call('HGET', run, 'state') ~= 'active' then return {0, 0} end
local n = 0
for _, id in ipairs(healing('SPOP', parked, most)) do
  if fields_of(prefix .. 'traj:' .. id, 'state').state == 'queued' then
    healing('ZADD', delayed, stamp(now), id)
    n = n + 1
  end
end
return {n, redis.call('SCARD', parked)}
