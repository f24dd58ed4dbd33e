-- @lazy budget_reserve
-- @include shared_budget, budget_check
-- The run's budget, in accounts that have one.
local ROUNDING = 1e-9  -- tolerance for sums of decimal fractions

-- Reserve for a job what its limits allow, or the average of the run's trajectories if that is more.
-- Returns nil, or why the job must not begin: `paused` (the run is paused now) or `held` (running jobs
-- may leave enough when they end); and a warning or ''.
local function budget_reserve(job, r)
  local warning = budget_check(run, r, now)
  if r.state == 'paused' then return 'paused', warning end
  local limits = shared_facts(job)
  local settled = math.max(1, tonumber(r.settled or '0'))
  local wanted, any = {}, false
  for _, name in ipairs(AMOUNTS) do
    local budget = tonumber(r['budget:' .. name] or '')
    if budget then
      local spent, reserved = tonumber(r['spent:' .. name] or '0'), tonumber(r['reserved:' .. name] or '0')
      local want = math.max(shared_amount(limits[name]), spent / settled)
      if spent + reserved + want > budget + ROUNDING then
        if tonumber(r.running or '0') > 0 then return 'held', warning end
        local why = budget_pause(run, r, string.format(
          'budget nearly spent: %s %.6g of %.6g, and the next trajectory may need %.6g',
          name, spent, budget, want))
        return 'paused', warning == '' and why or warning .. '; ' .. why
      end
      wanted[name], any = want, true
    end
  end
  for name, want in pairs(wanted) do redis.call('HINCRBYFLOAT', run, 'reserved:' .. name, want) end
  if any then redis.call('HSET', traj, 'reserved', cjson.encode(wanted)) end
  return nil, warning
end
