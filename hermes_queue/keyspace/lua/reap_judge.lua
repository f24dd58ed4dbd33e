-- @include time
-- Find listed sandboxes that have had no owner for long enough.
--
-- @key sandboxes, suspects = reaper:{backend}:suspects  ids by the time they were first found ownerless
-- @arg prefix, grace_s
-- @arg listed[id, worker]
-- Returns the ids to terminate: at this call and at one at least a grace ago, neither did the worker beat
-- nor was the lease held. Their records are deleted in the same step, so that nobody can claim them
-- before they are terminated. If a termination fails, the sandbox is listed and judged again. Safe to repeat.
local dead = {}
for _, sandbox in ipairs(listed) do
  local id = sandbox.id
  local lease = tonumber(redis.call('ZSCORE', sandboxes, id) or '0')
  if lease > now or redis.call('EXISTS', prefix .. 'worker:' .. sandbox.worker) == 1 then
    redis.call('ZREM', suspects, id)
  else
    redis.call('ZADD', suspects, 'LT', stamp(now), id)  -- the clock may be set back
    if now - tonumber(redis.call('ZSCORE', suspects, id)) >= tonumber(grace_s) then
      dead[#dead + 1] = id
      redis.call('ZREM', sandboxes, id)
      redis.call('DEL', prefix .. 'sandbox:' .. id)
    end
  end
end
redis.call('ZREMRANGEBYSCORE', suspects, '-inf', now - 86400)  -- ended long ago
redis.call('EXPIRE', suspects, 86400)
return dead
