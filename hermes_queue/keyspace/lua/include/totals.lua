-- Totals of the deployment since its Redis began, for metrics: the hash `totals`, field
-- `name|label|...` -> how often. A transition that happens once is counted once, in the script
-- that makes it: neither a call that is repeated nor a message that comes twice adds to it.
local TOTALS_MOST = 1000  -- fields; of envs beyond that `other` is counted

local function total(key, by, name, ...)
  local field, rest = name, name
  for i = 1, select('#', ...) do
    local label = select(i, ...)
    if type(label) ~= 'string' or label == '' then label = 'unknown' end
    label = string.gsub(label, '|', '/')
    field, rest = field .. '|' .. string.sub(label, 1, 120), rest .. '|other'
  end
  if redis.call('HEXISTS', key, field) == 0 and redis.call('HLEN', key) >= TOTALS_MOST then
    field = rest
  end
  redis.call('HINCRBYFLOAT', key, field, by)
end

-- An attempt has ended, at a cost in USD ('' = nobody knows the price).
local function total_spent(key, cost, tokens)
  if cost == '' then total(key, 1, 'unpriced')
  elseif tonumber(cost) ~= 0 then total(key, cost, 'cost_usd') end
  if tonumber(tokens) ~= 0 then total(key, tokens, 'tokens') end
end
