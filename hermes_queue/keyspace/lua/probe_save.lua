-- Keep what a probe of an endpoint and model found, for the workers that come later.
--
-- KEYS[1] probe:{hash}   hash: endpoint, model, verdict
-- ARGV[1] endpoint  ARGV[2] model  ARGV[3] verdict  ARGV[4] how long it holds, s
-- The last finding stands. Returns 1.
redis.call('HSET', KEYS[1], 'endpoint', ARGV[1], 'model', ARGV[2], 'verdict', ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.max(1, math.ceil(1000 * tonumber(ARGV[4]))))
return 1
