-- @include time, entries, members, healing, ids, hash, release/over
-- Let groups of a run begin that waited for its trainer, as far as it has come. A batch per call.
--
-- @key run = run:{run_id}, ahead = run:{run_id}:ahead, held = run:{run_id}:held, delayed, results
-- @key paced_runs = paced
-- @arg prefix, run_id
-- @arg most  about as many jobs, and groups that are looked at
-- @arg look_s  shortest time between two looks for groups that will never be trained
-- @answer moved, left  jobs that are due now, and those that still wait
-- Groups are admitted here, with all of their jobs that wait, and in the order in which they came.
local r = hash(run, 'state', 'max_ahead', 'ahead_of', 'pace_cursor', 'pace_looked')
if not r.state or r.state == 'cancelled' then
  redis.call('DEL', held, ahead)
  redis.call('ZREM', paced_runs, run_id)
  return {0, 0}
end
local limit = tonumber(r.max_ahead or '')
healing('ZCARD', held)
healing('HLEN', ahead)
-- Either way: the server's clock may have been set back.
if limit and math.abs(now - tonumber(r.pace_looked or '0')) >= tonumber(look_s) then count_over(r) end

-- Put jobs of a group back; returns how many.
local function put_back(ids)
  local n = 0
  for _, id in ipairs(ids) do
    if redis.call('ZREM', held, id) == 1 then
      local job = fields_of(prefix .. 'traj:' .. id, 'state', 'cancel')
      if job.state == 'queued' and not job.cancel then
        healing('ZADD', delayed, stamp(now), id)
        n = n + 1
      end
    end
  end
  return n
end

local moved = 0
while moved < tonumber(most) do
  local first = redis.call('ZRANGE', held, 0, 0)[1]
  if not first then break end
  local group_id, ids = group_of(first) or first, {first}
  local g = fields_of(prefix .. 'group:' .. group_id, 'planned', 'begun', 'closed')
  local counts = limit and g.planned and not g.begun and not g.closed
    and redis.call('HEXISTS', ahead, group_id) == 0
  if counts and redis.call('HLEN', ahead) >= limit then break end
  for index = 0, samples_of(g) - 1 do ids[index + 2] = group_id .. '.' .. index end
  local n = put_back(ids)
  if counts and n > 0 then redis.call('HSET', ahead, group_id, '') end
  moved = moved + n
end
if moved > 0 then redis.call('EXPIRE', ahead, math.max(1, redis.call('TTL', run))) end
local left = redis.call('ZCARD', held)
if left == 0 then redis.call('ZREM', paced_runs, run_id) end
return {moved, left}
