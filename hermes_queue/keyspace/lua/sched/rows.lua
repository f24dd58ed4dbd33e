-- Rows of the hash `sched`, `name=number name=number`: what operators have set for lane|, team|, env|, run| and the
-- whole fleet.
local function setting(row, name)
  return row and tonumber(string.match(' ' .. row, ' ' .. name .. '=([%d%.]+)'))
end

local function weight_of(row)
  local weight = setting(row, 'weight')
  return weight and weight > 0 and weight or 1
end

-- The key that counts slot-seconds in the current window of a quota.
local function spent_key(name, row)
  return prefix .. 'sched:spent:' .. string.format('%s:%.0f', name, math.floor(now / setting(row, 'window_s')))
end

-- Whether nothing more under `name` may begin. `running`: number of its jobs that run.
local function is_exhausted(name, row, running)
  local most, hours = setting(row, 'max_running'), setting(row, 'quota_h')
  if most and running >= most then return true end
  if not (hours and setting(row, 'window_s')) then return false end
  return (tonumber(redis.call('GET', spent_key(name, row)) or '') or 0) >= 3600 * hours
end
