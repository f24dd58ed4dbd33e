-- @include time, hash, entries, sched/tree, sched/put, sched/rows, sched/ticket, sched/reopen
-- @include sched/usage, sched/round, sched/visit, sched/limits
-- Keep the tree of waiting jobs in order, a part with each call: charge what running jobs have used, open what was
-- shut and is free again, and send messages to lanes in which jobs wait and none is left.
--
-- @key sched, running = sched:running, leaves = sched:leaves, blocked = sched:blocked, leases
-- @arg prefix
-- @arg every_s  between two visits of leaves, in the whole fleet
-- @arg most  leaves that a call visits
-- @arg tickets  messages that a call sends to a lane
-- @arg lanes[]  that the caller serves
-- @answer visited, sent  leaves and messages
-- A message too many does no harm: who takes it learns that nothing waits.
for key, kind in pairs({[leaves] = 'zset', [blocked] = 'zset'}) do
  local found = redis.call('TYPE', key)['ok']
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end
end
local s = hash(sched, 'at', 'ahead', 'ticked', 'cursor')
local at, ahead = steady(s.at, s.ahead)
local half = setting(redis.call('HGET', sched, 'fleet') or nil, 'half_life_s') or HALF_LIFE_S
local visited = 0
if math.abs(now - (tonumber(s.ticked or '') or 0)) >= tonumber(every_s) then
  local from = tonumber(s.cursor or '') or 0
  local page = redis.call('ZRANGE', leaves, from, from + tonumber(most) - 1)
  visited = #page
  local gone = 0
  for _, leaf in ipairs(page) do
    local whole, is_gone = pcall(visit, leaf, at, half)
    if not whole then clear(leaf) elseif is_gone then gone = gone + 1 end
  end
  local is_last = visited < tonumber(most)
  from = is_last and 0 or from + visited - gone
  note_waiting(is_last)
  redis.call('HSET', sched, 'at', stamp(at), 'ahead', stamp(ahead), 'ticked', stamp(now), 'cursor', from)
  look_at_limits()
end

-- How many jobs of the lane may begin.
local function room(lane)
  local field = 'lane|' .. lane
  local row = redis.call('HGET', sched, field) or nil
  if row and is_exhausted(field, row, tonumber(redis.call('HGET', running, field) or '') or 0) then return 0 end
  local breaker = hash(prefix .. 'lane:' .. lane, 'state', 'until')
  if breaker.state == 'open' and (tonumber(breaker['until'] or '') or 0) > now then return 0 end
  local fleet, leased = redis.call('HGET', sched, 'fleet') or nil, redis.call('ZCARD', leases)
  if fleet and is_exhausted('fleet', fleet, leased) then return 0 end
  local free = (setting(fleet, 'max_running') or math.huge) - leased
  return math.min(free, breaker.state and 1 or tonumber(tickets))
end

local sent = 0
for _, lane in ipairs(lanes) do
  local whole, id, waiting = pcall(function()
    if redis.call('EXISTS', open_set(lane)) == 1 and not has_messages(lane) then return any_job(lane) end
  end)
  if not whole then redis.call('DEL', open_set(lane)) end
  local count = whole and id and math.min(room(lane), waiting) or 0
  if count >= 1 then
    send_tickets(lane, count, id)
    sent = sent + count
  end
end
return {visited, sent}
