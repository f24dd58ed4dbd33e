-- Give leave to call a model endpoint back, and learn from how the call went.
--
-- KEYS as limit_acquire.lua
-- ARGV[1] request id  ARGV[2] outcome: ok | refused | paused | '' (says nothing of the limit)
-- ARGV[3] when it was granted  ARGV[4] seconds for which nobody shall call, 0 = none
-- ARGV[5] first limit  ARGV[6] least  ARGV[7] greatest  ARGV[8] growth a round  ARGV[9] decrease
-- ARGV[10] rounds without refusal before the limit is raised above where calls were refused
-- ARGV[11] tokens a minute, 0 = any  ARGV[12] tokens to charge beyond what was reserved, may be
-- negative  ARGV[13] seconds all this is kept  ARGV[14] leases when it was granted, its own
-- included
-- Returns 1, or 0 when the id holds no lease (any more): then only the pause was heard.
--
-- The limit grows by ARGV[8] of itself, at least by one, in a round (as many calls as the limit
-- allows) in which it was used up; by twice itself until the first refusal. It shrinks once for
-- all calls that were granted before it last shrank. The ceiling is how many calls at once were
-- still served when others were refused: the limit returns to it, and goes beyond only after
-- ARGV[10] rounds, or up to four times as many while that is in vain. A pause (weights are being updated) says nothing of the limit.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local function text(value) return string.format('%.6f', value) end
local id, outcome, granted_at = ARGV[1], ARGV[2], tonumber(ARGV[3])
local least, greatest = tonumber(ARGV[6]), tonumber(ARGV[7])
local state = redis.call('HMGET', KEYS[1], 'limit', 'ceiling', 'steady', 'decreased_at', 'hold_s',
  'pause_until', 'tpm_tat', 'rounds')
local limit = math.max(least, math.min(tonumber(state[1]) or tonumber(ARGV[5]), greatest))
local ceiling = tonumber(state[2])
local steady = tonumber(state[3]) or 0
local rounds = tonumber(state[8]) or tonumber(ARGV[10])
local decreased_at = tonumber(state[4]) or 0

local pause_s = tonumber(ARGV[4])
if pause_s > 0 and now + pause_s > (tonumber(state[6]) or 0) then
  redis.call('HSET', KEYS[1], 'pause_until', text(now + pause_s))
end
local leased = redis.call('ZCARD', KEYS[2])
redis.call('ZREM', KEYS[3], id)
redis.call('ZREM', KEYS[4], id)
local held = redis.call('ZREM', KEYS[2], id)
if held == 1 then
  if tonumber(ARGV[11]) > 0 and tonumber(ARGV[12]) ~= 0 then
    local drained = math.max(tonumber(state[7]) or 0, now) + ARGV[12] * 60 / ARGV[11]
    redis.call('HSET', KEYS[1], 'tpm_tat', text(drained))
  end
  if outcome == 'ok' then
    local hold = math.max(0, now - granted_at)
    local usual = tonumber(state[5])
    redis.call('HSET', KEYS[1], 'hold_s', text(usual and 0.9 * usual + 0.1 * hold or hold))
    if granted_at > decreased_at then
      steady = steady + 1
      local used_up = leased >= 0.9 * math.floor(limit)
      local below = ceiling and limit < ceiling
      if used_up and (not ceiling or below or steady >= rounds * limit) then
        limit = limit + (ceiling and math.max(tonumber(ARGV[8]), 1 / limit) or 1)
        if below then limit = math.min(limit, ceiling) end
      end
    end
  elseif outcome == 'refused' then
    -- A refusal comes at once, so it was one of as many calls as when it was granted.
    local among = math.max(leased, tonumber(ARGV[14]))
    redis.call('HINCRBY', KEYS[1], 'refused', 1)
    steady = 0
    local served = among - 1
    if granted_at > decreased_at then
      local in_vain = ceiling and limit > ceiling and math.abs(served - ceiling) < 1.5
      rounds = in_vain and math.min(2 * rounds, 4 * ARGV[10]) or ARGV[10]
      -- Of what was in use, when that was less; but one refusal takes no more than 60 %.
      limit = math.max(least, ARGV[9] * math.min(limit, math.max(among, limit / 2)))
      redis.call('HSET', KEYS[1], 'rounds', rounds, 'decreased_at', text(now))
    else
      served = math.min(served, ceiling or greatest)
    end
    ceiling = math.max(served, limit)
  elseif outcome == 'paused' then
    redis.call('HINCRBY', KEYS[1], 'paused', 1)
  end
  limit = math.max(least, math.min(limit, greatest))
  redis.call('HSET', KEYS[1], 'limit', tostring(limit), 'steady', steady)
  if ceiling then
    redis.call('HSET', KEYS[1], 'ceiling', tostring(ceiling))
  end
end
for i = 1, 4 do
  redis.call('EXPIRE', KEYS[i], ARGV[13])
end
return held
