-- Totals over the life of the deployment, for metrics: the hash `totals`, field `name|label|...` ->
-- count. Each transition counts in the script that makes it: if the caller counted, a repeated call or
-- a second delivery would be counted twice.
local TOTALS_MOST = 1000  -- fields; further envs are counted as `other`

local function total(key, by, name, ...)
  local field, labels = name, select('#', ...)
  for i = 1, labels do
    local label = select(i, ...)
    if type(label) ~= 'string' or label == '' then label = 'unknown' end
    if #label > 120 or string.find(label, '|', 1, true) then label = string.sub(string.gsub(label, '|', '/'), 1, 120) end
    field = field .. '|' .. label
  end
  local sum = redis.call(by == 1 and 'HINCRBY' or 'HINCRBYFLOAT', key, field, by)
  -- A sum of one count is a new field.
  local rest = tonumber(sum) == tonumber(by) and name .. string.rep('|other', labels) or field
  if field ~= rest and redis.call('HLEN', key) > TOTALS_MOST then
    redis.call('HDEL', key, field)
    redis.call('HINCRBYFLOAT', key, rest, by)
  end
end

-- Count an ended attempt and its cost in USD ('' = price unknown).
local function total_spent(key, cost, tokens)
  if cost == '' then total(key, 1, 'unpriced')
  elseif tonumber(cost) ~= 0 then total(key, cost, 'cost_usd') end
  if tonumber(tokens) ~= 0 then total(key, tokens, 'tokens') end
end
