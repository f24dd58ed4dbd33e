-- include: numbers
-- Set what a run may spend; the run need not exist yet.
--
-- KEYS[1] run:{id}
-- ARGV[1] TTL of a run, s  ARGV[2...] pairs of name (cost_usd, tokens, wall_s) and amount, ''
-- to have no such budget any more
-- Names that are not given stay as they are. Warnings are given anew.
local checked = {{'TTL of the run, s', ARGV[1], 1, 1e9, true}}
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then checked[#checked + 1] = {ARGV[i], ARGV[i + 1], 0, 1e18} end
end
local refused = refused_number(checked)
if refused then return refused end
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], 'budget:' .. ARGV[i])
  else
    redis.call('HSET', KEYS[1], 'budget:' .. ARGV[i], ARGV[i + 1])
  end
  redis.call('HDEL', KEYS[1], 'warned:' .. ARGV[i])
end
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
return 1
