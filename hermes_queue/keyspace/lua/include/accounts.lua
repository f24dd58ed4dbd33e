-- @include hash
-- The accounts of a run, in run:{id}: for the amounts cost_usd, tokens and slot_s, budget:<amount>, spent:<amount>
-- and reserved:<amount>; budget:wall_s counts from `created`. `settled` = number of ended trajectories.
-- traj:{id} holds its reservation while it runs (JSON).
local AMOUNTS = {'cost_usd', 'tokens', 'slot_s'}

local function is_budgeted(r)
  return r and (r['budget:cost_usd'] or r['budget:tokens'] or r['budget:slot_s'] or r['budget:wall_s'])
end

-- The fields of a run that transitions of its jobs look at, and `...`; nil if the run is unknown. What else a budget
-- needs is among them if there is one. Functions that change it keep it here, too.
local function accounts(run, ...)
  local r = hash(run, 'state', 'policy_version', 'max_ahead', 'running', 'budget:wall_s', 'budget:cost_usd',
    'budget:tokens', 'budget:slot_s', ...)
  if is_budgeted(r) then
    local names = {'created', 'settled', 'unpriced'}
    for _, name in ipairs(AMOUNTS) do names[#names + 1], names[#names + 2] = 'spent:' .. name, 'reserved:' .. name end
    for name, value in pairs(hash(run, unpack(names))) do r[name] = value end
  end
  return next(r) and r
end
