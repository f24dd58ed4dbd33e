-- The journal of a trajectory: traj:{id} has the field `journal` once there is one, the epoch that added to it
-- last; `noted`, what its turns cost then (JSON); `snapshot`, the newest copy of its slot's files; and `booked`,
-- the epoch up to which its tokens are.
local JOURNAL = {'journal', 'noted', 'snapshot', 'booked'}

-- Delete it. `job`: the field `journal`; nothing is done without.
local function drop_journal(prefix, key, id, job)
  if not job.journal then return end
  redis.call('DEL', prefix .. 'journal:' .. id)
  redis.call('HDEL', key, unpack(JOURNAL))
end
