-- @include time, entries, healing, ids, sched/leaf, sched/ticket
-- Find jobs of a lane that wait and stand in no leaf, from which they could be taken: an older version enqueued
-- them, or somebody has deleted a key. They are due again, and then they do. Keys of the lane's messages that are of
-- another type are removed: as long as there is one, no worker that serves the lane can take a message of any.
--
-- @key waiting, delayed
-- @arg prefix, lane
-- @arg age_s  younger jobs are left alone
-- @arg most  jobs to check
-- All lanes wait in the same set, so each call continues where the lane's last one ended, and starts again at the
-- oldest after the youngest. {prefix}reconcile:{lane} (hash) holds the number of skipped jobs.
-- Returns the ids that were put into `delayed`.
for _, key in ipairs(lists_of(lane)) do healing('LLEN', key) end
for _, name in ipairs({QUEUE .. lane, QUEUE .. lane .. '.retry'}) do
  for _, kind in ipairs({'binding.', 'binding_permanent.'}) do healing('SCARD', prefix .. '_kombu.' .. kind .. name) end
end
local passed = prefix .. 'reconcile:' .. lane
local from = tonumber(redis.call('HGET', passed, 'waiting') or '0')
local ids = healing('ZRANGEBYSCORE', waiting, '-inf', stamp(now - tonumber(age_s)), 'LIMIT', from, most)
local found, stay = {}, 0
for _, id in ipairs(ids) do
  local job = fields_of(prefix .. 'traj:' .. id, 'state', 'lane', 'leaf')
  local is_placed = job.leaf and type(redis.pcall('ZSCORE', jobs_of(job.leaf), id)) == 'string'
  if job.state ~= 'queued' then
    redis.call('ZREM', waiting, id)
  elseif job.lane == lane and not is_placed then
    redis.call('ZREM', waiting, id)
    healing('ZADD', delayed, stamp(now), id)
    found[#found + 1] = id
  else
    stay = stay + 1
  end
end
if #ids == tonumber(most) then
  redis.call('HSET', passed, 'waiting', from + stay)
  redis.call('EXPIRE', passed, 3600)
elseif from > 0 then
  redis.call('HDEL', passed, 'waiting')
end
return found
