-- The messages of these jobs are in the broker: nobody needs to publish them any more.
--
-- KEYS[1] delayed
-- ARGV[1] score they were claimed under, or '' for whatever score they have
-- ARGV[2...] ids. A job that was delayed anew meanwhile has another score and stays.
local n = 0
for i = 2, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and (ARGV[1] == '' or math.abs(tonumber(score) - tonumber(ARGV[1])) < 1e-5) then
    n = n + redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
return n
