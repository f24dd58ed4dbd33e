-- A run whose tokens drift more than it allows is paused: what is trained would not be what was sampled.
--
-- goodput:{run_id} has k|turns, those that continue another one with token ids, and k|drifted of them.
-- run:{id} has max_drift, the largest share.
local TURNS_LEAST = 100  -- of fewer turns no share is known

local function check_drift(run_id)
  local run = prefix .. 'run:' .. run_id
  local known = fields_of(run, 'state', 'max_drift')
  local limit = tonumber(known.max_drift or '')
  if not limit or known.state ~= 'active' then return end
  local counts = hash(prefix .. 'goodput:' .. run_id, 'k|turns', 'k|drifted')
  local turns, drifted = tonumber(counts['k|turns'] or '0'), tonumber(counts['k|drifted'] or '0')
  if turns < TURNS_LEAST or drifted <= limit * turns then return end
  redis.call('HSET', run, 'state', 'paused', 'paused_by', 'drift', 'reason', string.format(
    'drift: the tokens of %.0f of %.0f turns are not those that were sampled, more than max_drift = %.4g allows',
    drifted, turns, limit))
end
