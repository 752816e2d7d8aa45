from processors.spark.child import main

main()
