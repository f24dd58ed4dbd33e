-- @include numbers
-- Set the budgets of a run; the run need not exist yet.
--
-- @key run = run:{run_id}
-- @arg run_ttl_s
-- @arg budgets[name, amount]  name is cost_usd, tokens, slot_s or wall_s; amount '' = remove this budget
-- Other budgets stay unchanged. Warnings may be given again. Returns 1.
local checked = {{'TTL of the run, s', run_ttl_s, 1, 1e9, true}}
for _, budget in ipairs(budgets) do
  if budget.amount ~= '' then checked[#checked + 1] = {budget.name, budget.amount, 0, 1e18} end
end
local refused = refused_number(checked)
if refused then return refused end
for _, budget in ipairs(budgets) do
  if budget.amount == '' then
    redis.call('HDEL', run, 'budget:' .. budget.name)
  else
    redis.call('HSET', run, 'budget:' .. budget.name, budget.amount)
  end
  redis.call('HDEL', run, 'warned:' .. budget.name)
end
if redis.call('EXISTS', run) == 1 then redis.call('EXPIRE', run, run_ttl_s) end
return 1
