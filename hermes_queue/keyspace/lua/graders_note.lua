-- A worker reports that it grades what agents of these lanes have done.
--
-- @key graders[]  graders:{lane} each
-- @arg owner
-- @arg ttl_s  until it counts as silent
for _, key in ipairs(graders) do redis.call('SET', key, owner, 'EX', ttl_s) end
return #graders
