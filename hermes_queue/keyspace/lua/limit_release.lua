-- @include time, hash
-- Release the permission to call a model endpoint, and adapt the limit to the call's outcome.
--
-- @key endpoint = limit:{name}, leases = limit:{name}:leases  as in limit_acquire.lua
-- @key waiting = limit:{name}:waiting, seen = limit:{name}:seen
-- @arg id  of the request
-- @arg outcome  ok | refused | paused | '' (says nothing about the limit)
-- @arg granted_at, pause_s  pause_s: seconds for which nobody may call, 0 = none
-- @arg start_calls, min_calls, max_calls  of the limit
-- @arg growth, decrease  of the limit, as fractions of it
-- @arg probe_rounds  rounds without refusal before the limit rises above the last refused one
-- @arg tokens_per_minute  0 = unlimited
-- @arg more_tokens  to charge beyond the reservation, may be negative
-- @arg state_ttl_s  expiry of all these keys
-- @arg among  number of leases when it was granted, its own included
-- Returns 1, or 0 if the id holds no lease (any more): then only the pause was applied.
--
-- The limit grows by the fraction `growth`, at least by one, per round (as many calls as the limit
-- allows) in which it was used up; it doubles until the first refusal. It shrinks once for
-- all calls that were granted before it last shrank. The ceiling is the number of concurrent calls
-- still served when others were refused: the limit returns to it, and exceeds it only after
-- `probe_rounds`, or up to four times as many as long as that fails. A pause (e.g. for a weight
-- update) says nothing about the limit.
local least, greatest = tonumber(min_calls), tonumber(max_calls)
local state = hash(endpoint, 'limit', 'ceiling', 'steady', 'decreased_at', 'hold_s', 'pause_until', 'tpm_tat', 'rounds')
local limit = math.max(least, math.min(tonumber(state.limit) or tonumber(start_calls), greatest))
local ceiling = tonumber(state.ceiling)
local steady = tonumber(state.steady) or 0
local rounds = tonumber(state.rounds) or tonumber(probe_rounds)
local is_newer = tonumber(granted_at) > (tonumber(state.decreased_at) or 0)

if tonumber(pause_s) > 0 and now + pause_s > (tonumber(state.pause_until) or 0) then
  redis.call('HSET', endpoint, 'pause_until', stamp(now + pause_s))
end
local leased = redis.call('ZCARD', leases)
redis.call('ZREM', waiting, id)
redis.call('ZREM', seen, id)
local held = redis.call('ZREM', leases, id)
if held == 1 then
  if tonumber(tokens_per_minute) > 0 and tonumber(more_tokens) ~= 0 then
    local drained = math.max(tonumber(state.tpm_tat) or 0, now) + more_tokens * 60 / tokens_per_minute
    redis.call('HSET', endpoint, 'tpm_tat', stamp(drained))
  end
  if outcome == 'ok' then
    local hold = math.max(0, now - granted_at)
    local usual = tonumber(state.hold_s)
    redis.call('HSET', endpoint, 'hold_s', stamp(usual and 0.9 * usual + 0.1 * hold or hold))
    if is_newer then
      steady = steady + 1
      local used_up = leased >= 0.9 * math.floor(limit)
      local below = ceiling and limit < ceiling
      if used_up and (not ceiling or below or steady >= rounds * limit) then
        limit = limit + (ceiling and math.max(tonumber(growth), 1 / limit) or 1)
        if below then limit = math.min(limit, ceiling) end
      end
    end
  elseif outcome == 'refused' then
    -- Others may have ended since: a refusal is immediate, so count the calls from when it was granted.
    local others = math.max(leased, tonumber(among))
    redis.call('HINCRBY', endpoint, 'refused', 1)
    steady = 0
    local served = others - 1
    if is_newer then
      local in_vain = ceiling and limit > ceiling and math.abs(served - ceiling) < 1.5
      rounds = in_vain and math.min(2 * rounds, 4 * probe_rounds) or probe_rounds
      -- Shrink from the calls in use if those were fewer; but one refusal takes at most 60 %.
      limit = math.max(least, decrease * math.min(limit, math.max(others, limit / 2)))
      redis.call('HSET', endpoint, 'rounds', rounds, 'decreased_at', stamp(now))
    else
      served = math.min(served, ceiling or greatest)
    end
    ceiling = math.max(served, limit)
  elseif outcome == 'paused' then
    redis.call('HINCRBY', endpoint, 'paused', 1)
  end
  limit = math.max(least, math.min(limit, greatest))
  redis.call('HSET', endpoint, 'limit', tostring(limit), 'steady', steady)
  if ceiling then redis.call('HSET', endpoint, 'ceiling', tostring(ceiling)) end
end
for _, key in ipairs({endpoint, leases, waiting, seen}) do redis.call('EXPIRE', key, state_ttl_s) end
return held
