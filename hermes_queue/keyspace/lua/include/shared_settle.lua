-- @lazy shared_settle
-- @include shared_budget
-- Settle a job in the budgets that it shares: once, because the caller removes what is reserved (`raw`). The
-- rest is as in `budget_book`. Of the names in `raw`, which a producer could write, those alone count that the
-- job (JSON) and its run declare.

local function shared_settle(raw, job, run, spent, held_s, noted)
  local team = redis.pcall('HGET', run, 'team')
  local own, _, names = {}, shared_facts(job or '', type(team) == 'string' and team or nil)
  for _, name in ipairs(names) do own[name] = true end
  local whole, reserved = pcall(cjson.decode, raw)
  if not whole or type(reserved) ~= 'table' then return end
  local amounts = {slot_s = held_s}
  if spent then amounts.cost_usd, amounts.tokens = tonumber(spent[1]) or 0, tonumber(spent[2]) or 0 end
  for name, aside in pairs(reserved) do
    local key = own[name] and type(aside) == 'table' and prefix .. 'budget:' .. name
    -- One that was lifted and set anew meanwhile has reserved nothing for it.
    if key and redis.call('HEXISTS', prefix .. 'budgets', name) == 1
      and (aside.born or false) == redis.call('HGET', key, 'born') then
      shared_account(name)  -- a new window begins before this is added
      redis.call('HINCRBY', key, 'settled', 1)
      redis.call('HINCRBY', key, 'running', -1)
      for _, amount in ipairs(SHARED) do
        local back = shared_amount(aside[amount])
        local spent = amounts[amount] or math.max(0, back - (noted and tonumber(noted[amount]) or 0))
        if back > 0 then redis.call('HINCRBYFLOAT', key, 'reserved:' .. amount, -back) end
        if spent > 0 then
          redis.call('HINCRBYFLOAT', key, 'spent:' .. amount, spent)
          redis.call('HINCRBYFLOAT', key, 'all:' .. amount, spent)
        end
      end
    end
  end
end
