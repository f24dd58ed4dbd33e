-- @include numbers, bulk
-- Set how many groups of a run may be ahead of its trainer; the run need not exist yet.
--
-- @key run = run:{run_id}, ahead = run:{run_id}:ahead
-- @arg max_ahead  groups that have begun and are neither trained nor given up; '' = not paced
-- @arg readers  JSON list: consumer groups of the trainer that paces it; '' = leave them
-- @arg run_ttl_s
-- Groups that had begun before do not count. Jobs that wait begin as far as there is room: the mover
-- sees to it. Returns the number before, or ''.
local refused = refused_number({{'groups ahead', max_ahead == '' and '1' or max_ahead, 1, EXACT, true},
  {'TTL of the run, s', run_ttl_s, 1, 1e9, true}})
if refused then return refused end
local before = redis.call('HGET', run, 'max_ahead') or ''
if max_ahead == '' then
  redis.call('HDEL', run, 'max_ahead', 'ahead_of', 'pace_cursor', 'pace_looked')
  -- HDEL, not DEL: the Redis user of consumers could then also delete runs.
  in_pieces(redis.call('HKEYS', ahead), function(some) redis.call('HDEL', ahead, unpack(some)) end)
  return before
end
redis.call('HSET', run, 'max_ahead', max_ahead)
if readers ~= '' then redis.call('HSET', run, 'ahead_of', readers) end
redis.call('EXPIRE', run, run_ttl_s)
return before
