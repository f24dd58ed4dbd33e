-- Keys that many jobs need and a producer may write: one of another type is removed, before it can end a script
-- halfway. `junk` names it for recover.lua, which looks for the jobs that it had.

-- The answer of a command on such a key.
local function healing(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if string.find(tostring(answer.err), 'WRONGTYPE', 1, true) then
    redis.call('EXPIRE', key, -1)  -- not DEL, which producers have no right to
    redis.call('SET', prefix .. 'junk', key, 'EX', 86400)
  end
  return redis.call(command, key, ...)
end
