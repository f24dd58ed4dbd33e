-- include: numbers
-- include: entries
-- Renew the leases one owner holds.
--
-- KEYS[1] leases
-- ARGV[1] prefix  ARGV[2] owner  ARGV[3] lease, s  ARGV[4...] triples of id, epoch, stage
-- Returns a flat list of id, epoch, reason for those it does not hold any more, reason being
-- final | cancelled | surplus | lost, and for those it does hold: paused (its run is) | cancel (it
-- is to end as cancelled).
local t = redis.call('TIME')
local refused = refused_number({{'lease, s', ARGV[3], 0, 1e9}})
if refused then return refused end
local expires = string.format('%.6f', tonumber(t[1]) + tonumber(t[2]) / 1e6 + tonumber(ARGV[3]))
local gone, states = {}, {}
local function run_state(id)
  local run = string.match(id, '^(.*)%.[^.]*%.[^.]*$') or ''
  if states[run] == nil then
    states[run] = fields_of(ARGV[1] .. 'run:' .. run, 'state')[1] or false
  end
  return states[run]
end
for i = 4, #ARGV, 3 do
  local reason
  local f = fields_of(ARGV[1] .. 'traj:' .. ARGV[i], 'state', 'owner', 'epoch', 'cancel')
  if f[1] == 'running' and f[2] == ARGV[2] and f[3] == ARGV[i + 1] then
    redis.call('ZADD', KEYS[1], expires, ARGV[i])
    redis.call('HSET', ARGV[1] .. 'traj:' .. ARGV[i], 'stage', ARGV[i + 2])
    if run_state(ARGV[i]) == 'paused' then reason = 'paused' end
    if f[4] then reason = 'cancel' end
  else
    reason = 'lost'
    if f[1] == 'final' or f[1] == 'cancelled' or f[1] == 'surplus' then reason = f[1] end
  end
  if reason then
    gone[#gone + 1] = ARGV[i]
    gone[#gone + 1] = ARGV[i + 1]
    gone[#gone + 1] = reason
  end
end
return gone
