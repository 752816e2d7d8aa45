from mld.processors.spark.child import main

main()
