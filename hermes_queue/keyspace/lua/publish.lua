-- include: budget
-- include: totals
-- include: numbers
-- include: lives
-- Make one trajectory final and, when that decides its group, close the group. Exactly once.
--
-- KEYS[1] traj:{id}  KEYS[2] leases  KEYS[3] delayed  KEYS[4] group:{id}  KEYS[5] body:{id}, but see include/lives.lua
-- KEYS[6] results (stream)  KEYS[7] run:{id}  KEYS[8] waiting  KEYS[9] results:bytes, of all
-- bodies that wait for a reader, those of open groups included
-- KEYS[10] dead (stream)  KEYS[11] objects, see object_note.lua; counts in `totals` too
-- ARGV[1] id  ARGV[2] owner  ARGV[3] epoch  ARGV[4] score, or '' when not measured
-- ARGV[5] body, or the claim of one in the object store  ARGV[6] sample index  ARGV[7] TTL of finished state, s
-- ARGV[8] schema version  ARGV[9] codec  ARGV[10] group id  ARGV[11] run id
-- ARGV[12] '1' when this is a failure that a refill may make good  ARGV[13] prefix
-- ARGV[14] most groups  ARGV[15] most bytes in the stream  ARGV[16] of a failure what
-- `described_failure` says (JSON), else ''
-- ARGV[17] what the last attempt cost, USD ('' = unknown)  ARGV[18] tokens it used
-- ARGV[19] number of the oldest policy version that served it, '' when nobody knows
-- ARGV[20] of a claim its object as KEYS[11] lists it, else ''
-- A measured record is accepted from any attempt while the trajectory is open; a failure
-- only from the current owner and epoch, because a newer attempt may yet succeed. What a
-- revoked surplus sample has to show is kept beside its closed group.
-- An item under which workers died is remembered in {prefix}poison, for isolate.lua.
-- A dead letter ends with the log of the worker that died last, or that met the bug: {prefix}log:{owner}.
-- With a bound on the policy's age (drop, requeue) members beyond it, this one and those that
-- wait in the open group, leave the group as stale; one that is stale is taken from its current
-- owner only, because whoever runs it now has a newer policy.
-- Returns {verdict, a warning about the run's budget or ''}, verdict being
-- ok | outdated | group | dropped | surplus | full | unstored | final | cancelled | stale | unknown;
-- `outdated`: it is final, but too old to be a member, and its group goes on;
-- `group`: the group went to the stream, `dropped`: its policy threw it away, `full`: nothing
-- was done because too much waits for its readers; `unstored`: nothing was done because the object
-- may have been deleted meanwhile.
local id, ttl, prefix = ARGV[1], ARGV[7], ARGV[13]
local refused = refused_number({{'epoch', ARGV[3], 1, EXACT, true}, {'score', ARGV[4] == '' and '0' or ARGV[4], -1e308, 1e308},
  {'sample index', ARGV[6], 0, EXACT, true}, {'TTL of finished state, s', ttl, 1, 1e9, true},
  {'most groups', ARGV[14], 0, EXACT}, {'most bytes', ARGV[15], 0, EXACT},
  {'cost, USD', ARGV[17] == '' and '0' or ARGV[17], 0, 1e9}, {'tokens', ARGV[18], 0, 1e15, true},
  {'policy version', ARGV[19] == '' and '0' or ARGV[19], -EXACT, EXACT, true}})
if refused then return refused end
local failure = ARGV[16] ~= '' and cjson.decode(ARGV[16]) or {}
local f = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'floor')
local state = f[1]
if not state then
  return {redis.call('EXISTS', prefix .. 'purged:' .. ARGV[11]) == 1 and 'cancelled' or 'unknown', ''}
end
if tonumber(ARGV[3]) <= (tonumber(f[4] or '') or 0) then return {'stale', ''} end  -- of a former life
local own_name = body_name(KEYS[1], id)
local own_body = prefix .. 'body:' .. own_name
if ARGV[20] ~= '' and state ~= 'final' and state ~= 'cancelled'
  and not redis.call('ZSCORE', KEYS[11], ARGV[20]) then return {'unstored', ''} end
if state == 'surplus' then
  redis.call('SET', own_body, ARGV[5], 'EX', ttl)
  redis.call('HSET', KEYS[1], 'state', 'final')
  return {'surplus', ''}
end
if state == 'final' or state == 'cancelled' then return {state, ''} end
local measured_now = ARGV[4] ~= ''
local g = redis.call('HMGET', KEYS[4], 'size', 'planned', 'refills', 'policy', 'requeues')
local policy = cjson.decode(g[4] or '{}')
local bound, version = policy.max_policy_lag, nil
if bound then version = tonumber(redis.call('HGET', KEYS[7], 'policy_version') or '') end
local function too_old(oldest)
  return version and oldest and oldest ~= '' and version - tonumber(oldest) > bound
end
local strict = policy.on_stale == 'drop' or policy.on_stale == 'requeue'
local mine = f[2] == ARGV[2] and f[3] == ARGV[3]
if not mine and (not measured_now or strict and too_old(ARGV[19])) then return {'stale', ''} end

-- With nothing to read nobody could make room: then only what is unfinished takes it.
local unread = redis.call('XLEN', KEYS[6])
if unread >= tonumber(ARGV[14])
  or unread > 0 and tonumber(redis.call('GET', KEYS[9]) or '0') >= tonumber(ARGV[15]) then return {'full', ''} end

local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local stamp = string.format('%.6f', now)
local counted = redis.call('EXISTS', KEYS[7]) == 1
local function count(name, by)
  if counted then redis.call('HINCRBY', KEYS[7], name, by or 1) end
end

-- Take a trajectory out of everything that would run it, for good. `spent` as in the budget.
local function settle(key, its_id, was, becomes, spent)
  redis.call('HDEL', key, 'job', 'attempts')
  redis.call('HSET', key, 'state', becomes)
  redis.call('EXPIRE', key, ttl)
  redis.call('ZREM', KEYS[2], its_id)
  redis.call('ZREM', KEYS[3], its_id)
  redis.call('ZREM', KEYS[8], its_id)
  redis.call('SREM', KEYS[7] .. ':parked', its_id)
  if was == 'running' then count('running', -1) end
  return (spent or was == 'running') and budget_settle(KEYS[7], key, spent, now) or ''
end

local origin = redis.call('HMGET', KEYS[1], 'lane', 'priority', 'job')
redis.call('SET', own_body, ARGV[5])
redis.call('INCRBY', KEYS[9], #ARGV[5])
if ARGV[20] ~= '' and own_name ~= id then
  local due = redis.call('ZSCORE', KEYS[11], ARGV[20])
  redis.call('ZREM', KEYS[11], ARGV[20])
  redis.call('ZADD', KEYS[11], due, own_name .. string.sub(ARGV[20], #id + 1))
end
if failure['dead'] then
  local g = redis.call('HMGET', KEYS[4], 'env', 'instance_id')
  local died = redis.call('HGET', KEYS[1], 'died')
  local killed = failure['cause'] == 'poison' and died and string.match(died, '%d+ (%S+) [^\n]*\n$')
  local log = redis.call('GET', prefix .. 'log:' .. (killed or ARGV[2]))
  local earlier = redis.call('HGET', KEYS[1], 'earlier')
  local letter = redis.call('XADD', KEYS[10], '*', 'cause', failure['cause'], 'reason', failure['reason'],
    'stage', failure['stage'], 'trajectory_id', id, 'run_id', ARGV[11], 'group_id', ARGV[10],
    'env', g[1] or '', 'instance_id', g[2] or '', 'owner', ARGV[2], 'attempts', failure['attempts'],
    'died', died or '', 'log', log or '', 'job', origin[3] or '',
    'earlier', earlier or '')
  if failure['item'] then
    local poison = prefix .. 'poison'
    local flat = redis.call('HGETALL', poison)
    for i = 1, #flat, 2 do
      if cjson.decode(flat[i + 1])['until'] < now then redis.call('HDEL', poison, flat[i]) end
    end
    redis.call('HSET', poison, failure['item'], cjson.encode({letter = letter, trajectory_id = id,
      ['until'] = now + failure['remember_s']}))
    redis.call('EXPIRE', poison, math.ceil(failure['remember_s']))
  end
end
count('settled')
local said = settle(KEYS[1], id, state, 'final', {ARGV[17], ARGV[18]})
count(measured_now and 'finished' or 'failed')
local totals, env = prefix .. 'totals', redis.call('HGET', KEYS[4], 'env')
local cause = failure['cause']
total(totals, 1, 'trajectories', env, measured_now and 'scored' or cause == 'cancelled' and cause or 'failed')
if cause and cause ~= 'cancelled' then total(totals, 1, 'failures', env, cause) end
if failure['dead'] then total(totals, 1, 'dead_letters', cause) end
total_spent(totals, ARGV[17], ARGV[18])
redis.call('HSET', KEYS[4], (measured_now and 'm:' or 'x:') .. ARGV[6],
  cjson.encode({own_name, ARGV[4], #ARGV[5], ARGV[19], stamp}))
local measured = redis.call('HINCRBY', KEYS[4], 'measured', measured_now and 1 or 0)
local failed = redis.call('HINCRBY', KEYS[4], 'failed', measured_now and 0 or 1)
local size = tonumber(g[1] or '1')
local planned = tonumber(g[2] or tostring(size))
local refills = tonumber(g[3] or '0')
local requeues = tonumber(g[5] or '0')

-- The same job under the next sample index. Deaths of its predecessor are not its own.
local function another(as, counter)
  local fresh = ARGV[10] .. '.' .. planned
  local from = floor_of_leftover(prefix .. 'traj:' .. fresh, tonumber(f[4] or '') or 0)
  if from > 0 then redis.call('HSET', prefix .. 'traj:' .. fresh, 'floor', from) end
  redis.call('HSET', prefix .. 'traj:' .. fresh, 'state', 'queued', 'attempt', 1, 'epoch', from,
    'lane', (string.gsub(origin[1], '%.quarantine%-?%d*$', '')), 'priority', origin[2], 'job', origin[3],
    'queued', stamp)
  redis.call('ZADD', KEYS[3], stamp, fresh)
  redis.call('HINCRBY', KEYS[4], as, 1)
  planned = redis.call('HINCRBY', KEYS[4], 'planned', 1)
  count('total')
  count(counter)
end

if ARGV[12] == '1' and planned - failed < size and refills < (policy.max_refills or 0) then
  another('refills', 'refilled')
elseif failure['keep'] and counted then  -- for `run retry`
  local kept = prefix .. 'failed:' .. ARGV[11]
  redis.call('HSET', kept, id, cjson.encode({failure['cause'], failure['reason'], origin[3]}))
  redis.call('EXPIRE', kept, math.max(1, redis.call('TTL', KEYS[7])))
end

-- Members whose policy is too old by now, this one included.
if measured_now and version and ARGV[19] == '' then count('policy_unknown') end
local outdated = false
if strict and version then
  for index = 0, planned - 1 do
    local raw = redis.call('HGET', KEYS[4], 'm:' .. index)
    local m = raw and cjson.decode(raw)
    if m and too_old(m[4]) then
      redis.call('HDEL', KEYS[4], 'm:' .. index)
      redis.call('HSET', KEYS[4], 'z:' .. index, raw)
      redis.call('EXPIRE', prefix .. 'body:' .. m[1], ttl)
      redis.call('DECRBY', KEYS[9], m[3])
      measured = redis.call('HINCRBY', KEYS[4], 'measured', -1)
      failed = redis.call('HINCRBY', KEYS[4], 'failed', 1)
      count('finished', -1)
      count('stale')
      outdated = outdated or m[1] == own_name
      if policy.on_stale == 'requeue' and planned - failed < size
        and requeues < (policy.max_requeues or 0) then
        another('requeues', 'stale_requeued')
        requeues = requeues + 1
      end
    end
  end
end
local open = outdated and 'outdated' or 'ok'

local exhausted = measured + failed >= planned
local hopeless = policy.on_incomplete == 'drop' and planned - failed < size
local watched = (policy.stop_after_equal or 0) > 0 and measured >= policy.stop_after_equal
if measured < size and not (exhausted or hopeless or watched) then return {open, said} end

local group = {}
local flat = redis.call('HGETALL', KEYS[4])
for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
local function member(kind, index)
  local value = group[kind .. ':' .. index]
  return value and cjson.decode(value)
end

local scores, bytes, sum, equal = {}, 0, 0, true
local members, extras, stale = {}, {}, {}
for index = 0, planned - 1 do
  local m = member('m', index)
  if m then
    members[#members + 1] = {index, m[1], m[5]}
    bytes = bytes + m[3]
    if too_old(m[4]) then stale[#stale + 1] = string.match(m[1], '^[^~]*') end
    scores[#scores + 1] = tonumber(m[2])
    sum = sum + tonumber(m[2])
    equal = equal and scores[#scores] == scores[1]
  end
end
local decided = watched and equal and measured < size
if measured < size and not (exhausted or hopeless or decided) then return {open, said} end

-- Close the group: revoke what still runs, say who belongs to it.
for index = 0, planned - 1 do
  local x = member('x', index)
  if x and exhausted and #members < size then
    members[#members + 1] = {index, x[1], x[5]}
    bytes = bytes + x[3]
  elseif x then
    extras[#extras + 1] = x[1]
    redis.call('EXPIRE', prefix .. 'body:' .. x[1], ttl)
    redis.call('DECRBY', KEYS[9], x[3])
  elseif member('z', index) then
    extras[#extras + 1] = member('z', index)[1]
  elseif not member('m', index) then
    local other = ARGV[10] .. '.' .. index
    local was = redis.call('HGET', prefix .. 'traj:' .. other, 'state')
    if was == 'queued' or was == 'running' then
      local paused = settle(prefix .. 'traj:' .. other, other, was, 'surplus')
      if said == '' then said = paused end
      count('surplus')
      extras[#extras + 1] = body_name(prefix .. 'traj:' .. other, other)
    end
  end
end
table.sort(members, function(a, b) return a[1] < b[1] end)
local ids, taken = {}, {}
for _, m in ipairs(members) do
  ids[#ids + 1] = m[2]
  taken[#taken + 1] = m[3] or ''  -- '': an older version published it
end
local complete = #scores == size
local mean, std = '', ''
if #scores > 0 then
  local m, square = sum / #scores, 0
  for _, s in ipairs(scores) do square = square + (s - m) * (s - m) end
  mean = string.format('%.17g', m)
  std = string.format('%.17g', math.sqrt(square / #scores))
end
redis.call('HSET', KEYS[4], 'closed', stamp)
redis.call('EXPIRE', KEYS[4], ttl)
if decided then count('stopped_early') end
if not complete then count('incomplete') end

local why = nil
if policy.drop_zero_variance and equal and #scores > 1 then why = 'zero_variance' end
if policy.on_incomplete == 'drop' and not complete then why = why or 'incomplete' end
if #members == 0 then why = why or 'stale' end  -- nothing else takes all members away
if why then
  for _, its_id in ipairs(ids) do redis.call('EXPIRE', prefix .. 'body:' .. its_id, ttl) end
  redis.call('DECRBY', KEYS[9], bytes)
  redis.call('HSET', KEYS[4], 'dropped', why)
  count('dropped')
  count('dropped_' .. why)
  total(totals, 1, 'groups', env, 'dropped')
  return {'dropped', said}
end
redis.call('XADD', KEYS[6], '*', 'schema', ARGV[8], 'codec', ARGV[9], 'run_id', ARGV[11],
  'group_id', ARGV[10], 'env', group['env'] or '', 'instance_id', group['instance_id'] or '',
  'size', tostring(size), 'complete', complete and '1' or '0', 'mean', mean, 'std', std,
  'bytes', tostring(bytes), 'created', group['created'] or stamp, 'finished', stamp,
  'members', cjson.encode(ids), 'extras', #extras > 0 and cjson.encode(extras) or '[]',
  'policy_version', redis.call('HGET', KEYS[7], 'policy_version') or '',
  'stale', #stale > 0 and cjson.encode(stale) or '[]', 'published', cjson.encode(taken))
if #stale > 0 then count('stale_labelled', #stale) end
count('groups')
total(totals, 1, 'groups', env, 'published')
return {'group', said}
