-- @include time, numbers, hash, entries, goodput, goodput/series, goodput/drift
-- A worker adds where the slot-time of attempts went that have ended with it, and what they were worth.
--
-- @key life = life:{owner}
-- @arg prefix
-- @arg number  of this report of the owner, rising: a report that is repeated counts once
-- @arg life_ttl_s, run_ttl_s
-- @arg counts[run_id, field, by]  fields of include/goodput.lua
-- @arg moments[run_id, field, by]  the same for the run's course over time, see goodput/series.lua
-- @arg slow[run_id, name, seconds]  the longest trajectories of these runs
-- Returns 1; 0 if the report was counted before.
local checked = {{'number', number, 1, EXACT, true}}
for _, list in ipairs({counts, moments}) do
  for _, each in ipairs(list) do checked[#checked + 1] = {each.field, each.by, -1e15, 1e15} end
end
for _, each in ipairs(slow) do checked[#checked + 1] = {'seconds', each.seconds, 0, 1e15} end
local refused = refused_number(checked)
if refused then return refused end
if tonumber(redis.call('HGET', life, 'reported') or '0') >= tonumber(number) then return 0 end
redis.call('HSET', life, 'reported', number)
redis.call('EXPIRE', life, life_ttl_s)
local touched, drifting = {}, {}
for _, each in ipairs(counts) do
  charge(prefix, each.run_id, tonumber(run_ttl_s), each.field, each.by, now)
  if each.field == 'k|drifted' then drifting[each.run_id] = true end
end
for _, each in ipairs(moments) do
  add_moment(prefix .. 'series:' .. each.run_id, each.field, each.by)
  touched[each.run_id] = true
end
for _, each in ipairs(slow) do
  local key = prefix .. 'slowest:' .. each.run_id
  redis.call('ZADD', key, each.seconds, each.name)
  redis.call('ZREMRANGEBYRANK', key, 0, -SLOWEST_KEPT - 1)
  redis.call('EXPIRE', key, run_ttl_s)
end
for run_id in pairs(touched) do
  widen(prefix .. 'series:' .. run_id)
  redis.call('EXPIRE', prefix .. 'series:' .. run_id, run_ttl_s)
end
for run_id in pairs(drifting) do check_drift(run_id) end
return 1
