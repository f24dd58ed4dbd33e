-- @include time, entries
-- Confirm that the messages of these jobs are in the broker: they need no mover any more.
--
-- @key delayed, waiting  jobs whose message is in the broker, by time
-- @key retries = waiting:retry  jobs whose message is in a retry queue, for `reconcile`
-- @arg prefix
-- @arg claim  score they were claimed under, or '' = any score
-- @arg is_retry  '1' when the messages are in retry queues
-- @arg ids[]
-- A job that was delayed again meanwhile (its message was answered `held`, or its first attempt has
-- failed) has another score and stays: removing it here would leave it without a message. A job that a
-- worker has begun meanwhile no longer waits. Returns how many of them were delayed.
local n = 0
for _, id in ipairs(ids) do
  local score = redis.call('ZSCORE', delayed, id)
  if score and (claim == '' or math.abs(tonumber(score) - tonumber(claim)) < 1e-5) then
    n = n + redis.call('ZREM', delayed, id)
    if fields_of(prefix .. 'traj:' .. id, 'state').state == 'queued' then
      redis.call('ZADD', waiting, stamp(now), id)
      if is_retry == '1' then redis.call('ZADD', retries, stamp(now), id) end
    end
  end
end
if is_retry == '1' then redis.call('EXPIRE', retries, 86400) end
return n
