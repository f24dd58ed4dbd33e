-- @include time, numbers
-- Set a budget that jobs of several runs share, or lift it.
--
-- @key budgets, budget = budget:{name}
-- @arg name  <kind>:<name>
-- @arg lift  '1' = remove it
-- @arg window_s  spending counts for so long; '' = as before, 0 = for ever
-- @arg limits[name, amount]  cost_usd, tokens or slot_s; amount '' = remove this limit
-- Other limits and what is spent stay. Returns 1; 0 if there was nothing to lift.
local checked = {{'window, s', window_s == '' and '0' or window_s, 0, 1e9}}
for _, limit in ipairs(limits) do
  if limit.amount ~= '' then checked[#checked + 1] = {limit.name, limit.amount, 0, 1e18} end
end
local refused = refused_number(checked)
if refused then return refused end
if lift == '1' then
  redis.call('DEL', budget)
  return redis.call('HDEL', budgets, name)
end
redis.call('HDEL', budget, 'warned')  -- first, so that a full Redis accepts the script, see trim.lua
if redis.call('HEXISTS', budgets, name) == 0 then redis.call('HSET', budget, 'born', stamp(now)) end
for _, limit in ipairs(limits) do
  if limit.amount == '' then redis.call('HDEL', budget, 'limit:' .. limit.name)
  else redis.call('HSET', budget, 'limit:' .. limit.name, limit.amount) end
end
if window_s ~= '' and redis.call('HGET', budget, 'window_s') ~= window_s then
  redis.call('HSET', budget, 'window_s', window_s)
end
redis.call('HSET', budgets, name, '1')
return 1
