-- @include clock
-- After a long time without sweeps, or a clock that was set back, living owners had no chance to renew.

local function extend_leases(is_set_back)
  local grace = stamp(now + tonumber(grace_s))
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '(0', is_set_back and '+inf' or grace)) do
    redis.call('ZADD', leases, grace, id)
  end
end

-- Shift all due times, so that everything waits as long as before.
local function set_back(step)
  for _, key in ipairs({delayed, waiting, sandboxes}) do
    healing('ZCARD', key)
    set_back_scores(key, step)
  end
  for _, lane in ipairs(healing('ZRANGE', lanes, 0, -1)) do
    set_back_fields(prefix .. 'lane:' .. lane, {'opened', 'until', 'probe'}, step)
    redis.call('DEL', prefix .. 'lane:' .. lane .. ':outcomes')
    redis.call('DEL', prefix .. 'graders:' .. lane)  -- those that live report themselves again
  end
end
