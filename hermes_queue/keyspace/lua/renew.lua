-- @include time, numbers, entries, ids
-- Renew the leases of one owner.
--
-- @key leases
-- @arg prefix, owner, lease_s
-- @arg claims[id, epoch, stage]
-- @answer notices[id, epoch, reason]  final | cancelled | surplus | lost: the owner does not hold it any
--         more; paused (its run is) | cancel (it has to end as cancelled): the owner still holds it
local refused = refused_number({{'lease, s', lease_s, 0, 1e9}})
if refused then return refused end
local expires = stamp(now + tonumber(lease_s))
local notices, states = {}, {}
local function run_state(id)
  local run_id = run_of(id) or ''
  if states[run_id] == nil then
    states[run_id] = fields_of(prefix .. 'run:' .. run_id, 'state').state or false
  end
  return states[run_id]
end
for _, claim in ipairs(claims) do
  local traj, reason = prefix .. 'traj:' .. claim.id, nil
  local job = fields_of(traj, 'state', 'owner', 'epoch', 'cancel')
  if job.state == 'running' and job.owner == owner and job.epoch == claim.epoch then
    redis.call('ZADD', leases, expires, claim.id)
    redis.call('HSET', traj, 'stage', claim.stage)
    if run_state(claim.id) == 'paused' then reason = 'paused' end
    if job.cancel then reason = 'cancel' end
  else
    reason = 'lost'
    if job.state == 'final' or job.state == 'cancelled' or job.state == 'surplus' then reason = job.state end
  end
  if reason then notices[#notices + 1] = {claim.id, claim.epoch, reason} end
end
return {notices}
