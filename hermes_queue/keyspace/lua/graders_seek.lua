-- @include time
-- Who grades what agents of a lane have done?
--
-- @key graders = graders:{lane}  see graders_note.lua
-- @key waiting[]  sched:open:{lane} each: of the lanes in which such work waits
-- @answer state  graded (graders live) | waits (none lives, and work waits) | idle (neither)
-- @answer hosts  with `waits`, those of the graders that were there before
if redis.call('ZCOUNT', graders, '(' .. stamp(now), '+inf') > 0 then return {'graded', {}} end
for _, key in ipairs(waiting) do
  if redis.call('EXISTS', key) == 1 then return {'waits', redis.call('ZRANGE', graders, 0, -1)} end
end
return {'idle', {}}
