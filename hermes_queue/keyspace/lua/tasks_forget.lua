-- Forget tasks.
--
-- @key tasks
-- @arg prefix
-- @arg members[]  `{env}:{sha256}`
-- Returns how many of them were known.
local forgotten = 0
for _, member in ipairs(members) do
  redis.pcall('ZREM', tasks, member)
  forgotten = forgotten + redis.call('DEL', prefix .. 'task:' .. member)
end
return forgotten
