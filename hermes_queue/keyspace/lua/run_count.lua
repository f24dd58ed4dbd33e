-- @include numbers, bulk
-- Count groups of a paced run off, which its trainer has trained or given up; and on again those that
-- a crash took out of its weights. Each group counts once, so the call may be repeated.
--
-- @key run = run:{run_id}, ahead = run:{run_id}:ahead
-- @arg readers  JSON list: consumer groups of the caller
-- @arg run_ttl_s
-- @arg off[]  ids of groups
-- @arg on[id, entry]  and their entries in the results stream
-- Returns 1; 0 if the run is not paced, or by another trainer: then nothing was changed.
local refused = refused_number({{'TTL of the run, s', run_ttl_s, 1, 1e9, true}})
if refused then return refused end
if not redis.call('HGET', run, 'max_ahead') then return 0 end
local paced_by = redis.call('HGET', run, 'ahead_of')
if paced_by and paced_by ~= readers then return 0 end
in_pieces(off, function(some) redis.call('HDEL', ahead, unpack(some)) end)
for _, group in ipairs(on) do redis.call('HSET', ahead, group.id, group.entry) end
if not paced_by then redis.call('HSET', run, 'ahead_of', readers) end
redis.call('EXPIRE', ahead, run_ttl_s)
return 1
