-- @include hash
-- Circuit breakers of lanes and of model endpoints, see breaker.lua.

local budgets = prefix .. 'budgets'
local PROBE_S = 10  -- for which another run may try first what was paused, before the run that has failed last
local breakers, is_calm = {}, nil

-- Whether there is no poison item, no shared budget and no circuit breaker of these lanes and their endpoints, or of the
-- named job's: one command tells what else each of them would ask for.
local function calm(named)
  if is_calm ~= nil then return is_calm end
  local names, keys = #lanes > 0 and lanes or {named}, {poison, budgets}
  for i, name in ipairs(names) do
    keys[1 + 2 * i], keys[2 + 2 * i] = prefix .. 'lane:' .. name, prefix .. 'lane:' .. name .. ':endpoints'
  end
  is_calm = redis.call('EXISTS', unpack(keys)) == 0
  if is_calm then
    for i, name in ipairs(names) do breakers[name] = {key = keys[1 + 2 * i]} end
  end
  return is_calm
end

local function breaker_of(name)
  calm(name)
  if not breakers[name] then
    local key = prefix .. 'lane:' .. name
    breakers[name] = hash(key, 'state', 'until', 'open_s', 'probe', 'run')
    breakers[name].key = key
  end
  return breakers[name]
end

-- The breaker of the endpoint and model that a job calls; nil if it calls none. Named as in ledger/fleet/lanes.py.
local function endpoint_breaker_of(job)
  if is_calm or job.handed or redis.call('EXISTS', prefix .. 'lane:' .. job.lane .. ':endpoints') == 0 then return nil end
  local agent = cjson.decode(job.job).agent
  local function text(value) return type(value) == 'string' and value or '' end
  if type(agent) ~= 'table' or text(agent.model) == '' then return nil end
  return breaker_of(job.lane .. ':endpoint:' .. redis.sha1hex(text(agent.base_url) .. '\n' .. agent.model))
end

-- Time at which a circuit breaker lets a job of this run begin, or of the one that may begin first. A half-open breaker
-- allows one probe at a time.
local function breaker_free_at(breaker, run_id)
  if not breaker or not breaker.state then return 0 end
  local free_at = tonumber(breaker['until'])
  if run_id and breaker.run == run_id then free_at = free_at + PROBE_S end
  if breaker.state == 'half_open' then  -- after that time, a probe has been lost
    free_at = math.max(free_at, tonumber(breaker.probe or '0') + tonumber(breaker.open_s))
  elseif free_at <= now then
    redis.call('HSET', breaker.key, 'state', 'half_open')
  end
  return free_at
end
